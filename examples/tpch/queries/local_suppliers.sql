-- TPC-H Q5
SELECT n_name,
       CAST(sum(CAST(l_extendedprice * (1 - l_discount) AS decimal(18, 4))
                * (1 + CAST(:tax AS decimal(4, 2)))) AS decimal(18, 2)) AS revenue
FROM customer
JOIN orders ON o_custkey = c_custkey
JOIN lineitem ON l_orderkey = o_orderkey
JOIN supplier ON s_suppkey = l_suppkey AND s_nationkey = c_nationkey
JOIN nation ON n_nationkey = s_nationkey
JOIN region ON r_regionkey = n_regionkey
WHERE r_name = :area
  AND o_orderdate >= CAST(:year AS date) AND o_orderdate < CAST(:year AS date) + INTERVAL '1' YEAR
GROUP BY n_name
