-- TPC-H Q4
SELECT o_orderpriority, count(*) AS orders
FROM orders
WHERE o_orderdate >= CAST(:quarter AS date)
  AND o_orderdate < CAST(:quarter AS date) + INTERVAL '3' MONTH
  AND EXISTS (SELECT 1 FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
GROUP BY o_orderpriority
