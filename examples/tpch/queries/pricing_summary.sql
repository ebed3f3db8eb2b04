-- TPC-H Q1
SELECT l_returnflag, l_linestatus, count(*) AS lines,
       CAST(sum(l_quantity) AS decimal(18, 2)) AS quantity,
       CAST(sum(l_extendedprice * (1 - l_discount)) AS decimal(18, 2)) AS net,
       CAST(sum(CAST(l_extendedprice * (1 - l_discount) AS decimal(18, 4))
                * (1 + CAST(:tax AS decimal(4, 2)))) AS decimal(18, 2)) AS gross
FROM lineitem
WHERE l_shipdate <= CAST(:shipped_until AS date)
GROUP BY l_returnflag, l_linestatus
