-- TPC-H Q12
SELECT l_shipmode,
       sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS urgent,
       sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 0 ELSE 1 END) AS others
FROM orders
JOIN lineitem ON l_orderkey = o_orderkey
WHERE array_contains(:modes, l_shipmode)
  AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
  AND l_receiptdate >= CAST(:year AS date)
  AND l_receiptdate < CAST(:year AS date) + INTERVAL '1' YEAR
GROUP BY l_shipmode
