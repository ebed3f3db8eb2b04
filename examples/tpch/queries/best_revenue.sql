-- returns: value
SELECT max(revenue) FROM supplier_revenue
