-- TPC-H Q7
SELECT s.n_name AS supplier_nation, c.n_name AS customer_nation, year(l_shipdate) AS year,
       CAST(sum(l_extendedprice * (1 - l_discount)) AS decimal(18, 2)) AS volume
FROM lineitem
JOIN supplier ON s_suppkey = l_suppkey
JOIN orders ON o_orderkey = l_orderkey
JOIN customer ON c_custkey = o_custkey
JOIN nation AS s ON s.n_nationkey = s_nationkey
JOIN nation AS c ON c.n_nationkey = c_nationkey
WHERE array_contains(:nations, s.n_name) AND array_contains(:nations, c.n_name)
  AND s.n_name <> c.n_name
  AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
GROUP BY s.n_name, c.n_name, year(l_shipdate)
