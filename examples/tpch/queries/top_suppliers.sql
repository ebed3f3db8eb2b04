-- TPC-H Q15
SELECT s_suppkey, s_name, revenue
FROM supplier
JOIN supplier_revenue ON l_suppkey = s_suppkey
WHERE revenue >= CAST(:best_revenue AS decimal(18, 2)) * CAST(:share AS decimal(4, 2))
