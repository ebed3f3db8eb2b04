-- TPC-H Q14
SELECT CAST(100 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
            / sum(l_extendedprice * (1 - l_discount)) AS decimal(8, 2)) AS percent
FROM lineitem
JOIN part ON p_partkey = l_partkey
WHERE l_shipdate >= CAST(:quarter AS date)
  AND l_shipdate < CAST(:quarter AS date) + INTERVAL '3' MONTH
