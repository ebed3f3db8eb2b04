-- TPC-H Q13
SELECT orders, count(*) AS customers
FROM (
  SELECT c_custkey, count(o_orderkey) AS orders
  FROM customer
  LEFT JOIN orders ON o_custkey = c_custkey AND o_comment NOT LIKE '%special%requests%'
  GROUP BY c_custkey
) AS counted
GROUP BY orders
