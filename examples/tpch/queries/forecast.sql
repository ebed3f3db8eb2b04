-- returns: value
-- TPC-H Q6
SELECT CAST(sum(l_extendedprice * l_discount) AS decimal(18, 2))
FROM lineitem
WHERE l_shipdate >= CAST(:year AS date) AND l_shipdate < CAST(:year AS date) + INTERVAL '1' YEAR
  AND l_discount BETWEEN CAST(:discount_low AS decimal(4, 2)) AND CAST(:discount_high AS decimal(4, 2))
  AND l_quantity < 24
