-- TPC-H Q15, its view
SELECT l_suppkey,
       CAST(sum(CAST(l_extendedprice * (1 - l_discount) AS decimal(18, 4))
                * (1 + CAST(:tax AS decimal(4, 2)))) AS decimal(18, 2)) AS revenue
FROM lineitem
WHERE l_shipdate >= CAST(:quarter AS date)
  AND l_shipdate < CAST(:quarter AS date) + INTERVAL '3' MONTH
GROUP BY l_suppkey
