-- TPC-H Q3
SELECT l_orderkey, o_orderdate, o_shippriority,
       CAST(sum(CAST(l_extendedprice * (1 - l_discount) AS decimal(18, 4))
                * (1 + CAST(:tax AS decimal(4, 2)))) AS decimal(18, 2)) AS revenue
FROM customer
JOIN orders ON o_custkey = c_custkey
JOIN lineitem ON l_orderkey = o_orderkey
WHERE c_mktsegment = :segment
  AND o_orderdate < CAST(:day AS date) AND l_shipdate > CAST(:day AS date)
GROUP BY l_orderkey, o_orderdate, o_shippriority
ORDER BY revenue DESC, o_orderdate, l_orderkey
LIMIT 10
