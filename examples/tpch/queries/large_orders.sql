-- TPC-H Q18
SELECT c_name, o_orderkey, o_orderdate, o_totalprice, CAST(quantity AS decimal(18, 2)) AS quantity
FROM (
  SELECT l_orderkey, sum(l_quantity) AS quantity FROM lineitem GROUP BY l_orderkey
) AS counted
JOIN orders ON o_orderkey = l_orderkey
JOIN customer ON c_custkey = o_custkey
WHERE quantity > :quantity
ORDER BY o_totalprice DESC, o_orderdate, o_orderkey
LIMIT 100
