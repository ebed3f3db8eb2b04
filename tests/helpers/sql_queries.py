# ruff: noqa: S608 - texts of this file alone
"""Queries that people write, and small tables that they have rows of: TPC-H and a shop."""

from pathlib import Path
from typing import Final

_KEY: Final = "CAST(pmod(xxhash64(id, {seed}), {many}) AS BIGINT)"


def _pick(seed: int, *words: str) -> str:
    key = _KEY.format(seed=seed, many=len(words))
    return f"element_at(array({', '.join(map(repr, words))}), CAST({key} AS INT) + 1)"


def _key(seed: int, many: int) -> str:
    return _KEY.format(seed=seed, many=many)


def _money(seed: int, most: int) -> str:
    return f"CAST({_key(seed, most * 100)} / 100 AS DECIMAL(12, 2))"


def _day(seed: int) -> str:
    return f"date_add(DATE '1992-01-01', CAST({_key(seed, 2500)} AS INT))"


def _table(rows: int, **columns: str) -> str:
    listed = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
    return f"SELECT {listed} FROM range({rows})"


_REGIONS: Final = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_NATIONS: Final = ("FRANCE", "GERMANY", "BRAZIL", "CANADA", "SAUDI ARABIA", "INDIA")

TABLES: Final = {
    "region": _table(
        5, r_regionkey="id", r_name=f"element_at(array{_REGIONS}, CAST(id AS INT) + 1)"
    ),
    "nation": _table(
        6,
        n_nationkey="id",
        n_name=f"element_at(array{_NATIONS}, CAST(id AS INT) + 1)",
        n_regionkey="id % 5",
    ),
    "supplier": _table(
        20,
        s_suppkey="id",
        s_name="concat('Supplier#', id)",
        s_address="concat('street ', id)",
        s_nationkey="id % 6",
        s_phone="concat(10 + id, '-555')",
        s_acctbal=_money(1, 9000),
        s_comment=_pick(2, "good", "Customer had Complaints", "fine"),
    ),
    "customer": _table(
        60,
        c_custkey="id",
        c_name="concat('Customer#', id)",
        c_address="concat('road ', id)",
        c_nationkey="id % 6",
        c_phone="concat(13 + id % 20, '-555-', id)",
        c_acctbal=_money(3, 9000),
        c_mktsegment=_pick(4, "BUILDING", "MACHINERY"),
        c_comment="'none'",
    ),
    "part": _table(
        40,
        p_partkey="id",
        p_name=_pick(5, "forest green", "lime green", "red"),
        p_mfgr="'Manufacturer#1'",
        p_brand=_pick(6, "Brand#12", "Brand#23", "Brand#34", "Brand#45"),
        p_type=_pick(7, "ECONOMY ANODIZED STEEL", "PROMO BRUSHED COPPER", "LARGE PLATED BRASS"),
        p_size=f"CAST({_key(8, 16)} AS INT) + 1",
        p_container=_pick(9, "SM CASE", "MED BOX", "LG PACK"),
        p_retailprice=_money(10, 2000),
    ),
    "partsupp": _table(
        160,
        ps_partkey="id % 40",
        ps_suppkey="(id % 40 + id DIV 40 * 5) % 20",
        ps_availqty=f"CAST({_key(11, 10000)} AS INT)",
        ps_supplycost=_money(12, 1000),
    ),
    "orders": _table(
        200,
        o_orderkey="id",
        o_custkey=_key(13, 45),
        o_orderstatus=_pick(14, "F", "O"),
        o_totalprice=_money(15, 300000),
        o_orderdate=_day(16),
        o_orderpriority=_pick(17, "1-URGENT", "2-HIGH", "5-LOW"),
        o_shippriority="0",
        o_comment=_pick(18, "plain", "some special packages requests"),
    ),
    "lineitem": _table(
        900,
        l_orderkey="id % 200",
        l_partkey="id % 40",
        l_suppkey="(id % 40 + id DIV 200 * 5) % 20",
        l_linenumber="id DIV 200 + 1",
        l_quantity=f"CAST({_key(19, 100)} + 1 AS DECIMAL(12, 2))",
        l_extendedprice=_money(20, 90000),
        l_discount=f"CAST({_key(21, 11)} / 100 AS DECIMAL(12, 2))",
        l_tax=f"CAST({_key(22, 9)} / 100 AS DECIMAL(12, 2))",
        l_returnflag=_pick(23, "A", "N", "R"),
        l_linestatus=_pick(24, "F", "O"),
        l_shipdate=_day(25),
        l_commitdate=_day(26),
        l_receiptdate=_day(27),
        l_shipinstruct=_pick(28, "DELIVER IN PERSON", "NONE"),
        l_shipmode=_pick(29, "MAIL", "SHIP", "AIR", "AIR REG"),
    ),
    "raw_customers": _table(9, id="id", first_name="concat('n', id)", last_name="concat(id, 'x')"),
    "raw_orders": _table(
        30, id="id", user_id="id % 8", order_date=_day(30), status=_pick(31, "placed", "returned")
    ),
    "raw_payments": _table(
        40,
        id="id",
        order_id="id % 30",
        payment_method=_pick(32, "credit_card", "coupon", "bank_transfer", "gift_card"),
        amount=f"{_key(33, 3000)}",
    ),
    "things": _table(
        12,
        id="id",
        kind=_pick(34, "a", "b", "c"),
        day=f"date_add(DATE '2024-02-20', CAST({_key(35, 30)} AS INT))",
        at="timestamp_seconds(1700000000 + id * 3601)",
        price=_money(36, 50),
        note="CASE WHEN id % 3 = 0 THEN NULL ELSE concat('it''s ', id, ' \\\\ %') END",
        tags="array(id, id + 1, NULL, id * 2)",
        words="array('x', concat('w', id))",
        pairs="map('k', id, 'l', id * 10)",
        place="named_struct('city', concat('c', id % 2), 'geo', named_struct('lat', id * 1.5D))",
        document="concat('{\"a\": ', id, ', \"b\": [1, 2]}')",
    ),
}
"""A query that makes each table."""

PARAMETERS: Final = {"rate": 0.07, "least": 3, "word": "b", "since": "1994-01-01"}

_REVENUE: Final = "sum(l_extendedprice * (1 - l_discount))"

TPCH: Final = {
    1: """
select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty,
    sum(l_extendedprice) as sum_base_price,
    sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
    sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge,
    avg(l_quantity) as avg_qty, avg(l_discount) as avg_disc, count(*) as count_order
from lineitem where l_shipdate <= date '1998-12-01' - interval '90' day
group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus""",
    2: """
select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
from part, supplier, partsupp, nation, region
where p_partkey = ps_partkey and s_suppkey = ps_suppkey and p_size = 15 and p_type like '%BRASS'
    and s_nationkey = n_nationkey and n_regionkey = r_regionkey and r_name = 'EUROPE'
    and ps_supplycost = (
        select min(ps_supplycost) from partsupp, supplier, nation, region
        where p_partkey = ps_partkey and s_suppkey = ps_suppkey and s_nationkey = n_nationkey
            and n_regionkey = r_regionkey and r_name = 'EUROPE')
order by s_acctbal desc, n_name, s_name, p_partkey limit 100""",
    3: """
select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
from customer, orders, lineitem
where c_mktsegment = 'BUILDING' and c_custkey = o_custkey and l_orderkey = o_orderkey
    and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
group by l_orderkey, o_orderdate, o_shippriority order by revenue desc, o_orderdate limit 10""",
    4: """
select o_orderpriority, count(*) as order_count from orders
where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-07-01' + interval '3' month
    and exists (select * from lineitem
        where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
group by o_orderpriority order by o_orderpriority""",
    5: """
select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
from customer, orders, lineitem, supplier, nation, region
where c_custkey = o_custkey and l_orderkey = o_orderkey and l_suppkey = s_suppkey
    and c_nationkey = s_nationkey and s_nationkey = n_nationkey and n_regionkey = r_regionkey
    and r_name = 'ASIA' and o_orderdate >= date '1994-01-01'
    and o_orderdate < date '1994-01-01' + interval '1' year
group by n_name order by revenue desc""",
    6: """
select sum(l_extendedprice * l_discount) as revenue from lineitem
where l_shipdate >= date '1994-01-01' and l_shipdate < date '1994-01-01' + interval '1' year
    and l_discount between .06 - 0.01 and .06 + 0.01 and l_quantity < 24""",
    7: """
select supp_nation, cust_nation, l_year, sum(volume) as revenue from (
    select n1.n_name as supp_nation, n2.n_name as cust_nation,
        extract(year from l_shipdate) as l_year, l_extendedprice * (1 - l_discount) as volume
    from supplier, lineitem, orders, customer, nation n1, nation n2
    where s_suppkey = l_suppkey and o_orderkey = l_orderkey and c_custkey = o_custkey
        and s_nationkey = n1.n_nationkey and c_nationkey = n2.n_nationkey
        and ((n1.n_name = 'FRANCE' and n2.n_name = 'GERMANY')
            or (n1.n_name = 'GERMANY' and n2.n_name = 'FRANCE'))
        and l_shipdate between date '1995-01-01' and date '1996-12-31') as shipping
group by supp_nation, cust_nation, l_year order by supp_nation, cust_nation, l_year""",
    8: """
select o_year, sum(case when nation = 'BRAZIL' then volume else 0 end) / sum(volume) as mkt_share
from (
    select extract(year from o_orderdate) as o_year,
        l_extendedprice * (1 - l_discount) as volume, n2.n_name as nation
    from part, supplier, lineitem, orders, customer, nation n1, nation n2, region
    where p_partkey = l_partkey and s_suppkey = l_suppkey and l_orderkey = o_orderkey
        and o_custkey = c_custkey and c_nationkey = n1.n_nationkey
        and n1.n_regionkey = r_regionkey and r_name = 'AMERICA' and s_nationkey = n2.n_nationkey
        and o_orderdate between date '1995-01-01' and date '1996-12-31'
        and p_type = 'ECONOMY ANODIZED STEEL') as all_nations
group by o_year order by o_year""",
    9: """
select nation, o_year, sum(amount) as sum_profit from (
    select n_name as nation, extract(year from o_orderdate) as o_year,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity as amount
    from part, supplier, lineitem, partsupp, orders, nation
    where s_suppkey = l_suppkey and ps_suppkey = l_suppkey and ps_partkey = l_partkey
        and p_partkey = l_partkey and o_orderkey = l_orderkey and s_nationkey = n_nationkey
        and p_name like '%green%') as profit
group by nation, o_year order by nation, o_year desc""",
    10: """
select c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) as revenue, c_acctbal, n_name,
    c_address, c_phone, c_comment
from customer, orders, lineitem, nation
where c_custkey = o_custkey and l_orderkey = o_orderkey and o_orderdate >= date '1993-10-01'
    and o_orderdate < date '1993-10-01' + interval '3' month and l_returnflag = 'R'
    and c_nationkey = n_nationkey
group by c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
order by revenue desc limit 20""",
    11: """
select ps_partkey, sum(ps_supplycost * ps_availqty) as value from partsupp, supplier, nation
where ps_suppkey = s_suppkey and s_nationkey = n_nationkey and n_name = 'GERMANY'
group by ps_partkey having sum(ps_supplycost * ps_availqty) > (
    select sum(ps_supplycost * ps_availqty) * 0.0001 from partsupp, supplier, nation
    where ps_suppkey = s_suppkey and s_nationkey = n_nationkey and n_name = 'GERMANY')
order by value desc""",
    12: """
select l_shipmode,
    sum(case when o_orderpriority = '1-URGENT' or o_orderpriority = '2-HIGH' then 1 else 0 end)
        as high_line_count,
    sum(case when o_orderpriority <> '1-URGENT' and o_orderpriority <> '2-HIGH' then 1 else 0 end)
        as low_line_count
from orders, lineitem
where o_orderkey = l_orderkey and l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate
    and l_shipdate < l_commitdate and l_receiptdate >= date '1994-01-01'
    and l_receiptdate < date '1994-01-01' + interval '1' year
group by l_shipmode order by l_shipmode""",
    13: """
select c_count, count(*) as custdist from (
    select c_custkey, count(o_orderkey) from customer left outer join orders on
        c_custkey = o_custkey and o_comment not like '%special%requests%'
    group by c_custkey) as c_orders (c_custkey, c_count)
group by c_count order by custdist desc, c_count desc""",
    14: """
select 100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0
    end) / sum(l_extendedprice * (1 - l_discount)) as promo_revenue
from lineitem, part where l_partkey = p_partkey and l_shipdate >= date '1995-09-01'
    and l_shipdate < date '1995-09-01' + interval '1' month""",
    15: f"""
with revenue as (
    select l_suppkey as supplier_no, {_REVENUE} as total_revenue from lineitem
    where l_shipdate >= date '1996-01-01' and l_shipdate < date '1996-01-01' + interval '3' month
    group by l_suppkey)
select s_suppkey, s_name, s_address, s_phone, total_revenue from supplier, revenue
where s_suppkey = supplier_no and total_revenue = (select max(total_revenue) from revenue)
order by s_suppkey""",
    16: """
select p_brand, p_type, p_size, count(distinct ps_suppkey) as supplier_cnt from partsupp, part
where p_partkey = ps_partkey and p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%'
    and p_size in (3, 9, 14, 1, 5, 7)
    and ps_suppkey not in (
        select s_suppkey from supplier where s_comment like '%Customer%Complaints%')
group by p_brand, p_type, p_size order by supplier_cnt desc, p_brand, p_type, p_size""",
    17: """
select sum(l_extendedprice) / 7.0 as avg_yearly from lineitem, part
where p_partkey = l_partkey and p_brand = 'Brand#23' and p_container = 'MED BOX'
    and l_quantity < (select 0.8 * avg(l_quantity) from lineitem where l_partkey = p_partkey)""",
    18: """
select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity)
from customer, orders, lineitem
where o_orderkey in (
        select l_orderkey from lineitem group by l_orderkey having sum(l_quantity) > 300)
    and c_custkey = o_custkey and o_orderkey = l_orderkey
group by c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
order by o_totalprice desc, o_orderdate limit 100""",
    19: """
select sum(l_extendedprice* (1 - l_discount)) as revenue from lineitem, part
where (p_partkey = l_partkey and p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX')
        and l_quantity >= 1 and l_quantity <= 1 + 10 and p_size between 1 and 5
        and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON')
    or (p_partkey = l_partkey and p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX')
        and l_quantity >= 10 and l_quantity <= 10 + 10 and p_size between 1 and 10
        and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON')
    or (p_partkey = l_partkey and p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG PACK')
        and l_quantity >= 20 and l_quantity <= 20 + 80 and p_size between 1 and 15
        and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON')""",
    20: """
select s_name, s_address from supplier, nation
where s_suppkey in (
        select ps_suppkey from partsupp
        where ps_partkey in (select p_partkey from part where p_name like 'forest%')
            and ps_availqty > (
                select 0.5 * sum(l_quantity) from lineitem
                where l_partkey = ps_partkey and l_suppkey = ps_suppkey
                    and l_shipdate >= date '1994-01-01'
                    and l_shipdate < date '1994-01-01' + interval '1' year))
    and s_nationkey = n_nationkey and n_name = 'CANADA'
order by s_name""",
    21: """
select s_name, count(*) as numwait from supplier, lineitem l1, orders, nation
where s_suppkey = l1.l_suppkey and o_orderkey = l1.l_orderkey and o_orderstatus = 'F'
    and l1.l_receiptdate > l1.l_commitdate
    and exists (select * from lineitem l2
        where l2.l_orderkey = l1.l_orderkey and l2.l_suppkey <> l1.l_suppkey)
    and not exists (select * from lineitem l3
        where l3.l_orderkey = l1.l_orderkey and l3.l_suppkey <> l1.l_suppkey
            and l3.l_receiptdate > l3.l_commitdate)
    and s_nationkey = n_nationkey and n_name = 'SAUDI ARABIA'
group by s_name order by numwait desc, s_name limit 100""",
    22: """
select cntrycode, count(*) as numcust, sum(c_acctbal) as totacctbal from (
    select substring(c_phone from 1 for 2) as cntrycode, c_acctbal from customer
    where substring(c_phone from 1 for 2) in ('13', '31', '23', '29', '30', '18', '17')
        and c_acctbal > (
            select avg(c_acctbal) from customer where c_acctbal > 0.00
                and substring(c_phone from 1 for 2) in ('13', '31', '23', '29', '30', '18', '17'))
        and not exists (select * from orders where o_custkey = c_custkey)) as custsale
group by cntrycode order by cntrycode""",
}

_STAGED: Final = """
with source as (select * from {raw}), renamed as (select {columns} from source)
select * from renamed"""
_STAGES: Final = {
    "stg_customers": ("raw_customers", "id as customer_id, first_name, last_name"),
    "stg_orders": ("raw_orders", "id as order_id, user_id as customer_id, order_date, status"),
    "stg_payments": (
        "raw_payments",
        "id as payment_id, order_id, payment_method, -- cents\n amount / 100 as amount",
    ),
}
_METHODS: Final = ("credit_card", "coupon", "bank_transfer", "gift_card")

SHOP: Final = {
    **{name: _STAGED.format(raw=raw, columns=columns) for name, (raw, columns) in _STAGES.items()},
    "customers": """
with customers as (select * from stg_customers), orders as (select * from stg_orders),
payments as (select * from stg_payments),
customer_orders as (
    select customer_id, min(order_date) as first_order, max(order_date) as most_recent_order,
        count(order_id) as number_of_orders
    from orders group by customer_id),
customer_payments as (
    select orders.customer_id, sum(amount) as total_amount
    from payments left join orders on payments.order_id = orders.order_id
    group by orders.customer_id),
final as (
    select customers.customer_id, customers.first_name, customers.last_name,
        customer_orders.first_order, customer_orders.most_recent_order,
        customer_orders.number_of_orders, customer_payments.total_amount as customer_lifetime_value
    from customers
    left join customer_orders on customers.customer_id = customer_orders.customer_id
    left join customer_payments on customers.customer_id = customer_payments.customer_id)
select * from final""",
    "orders_of_shop": """
with orders as (select * from stg_orders), payments as (select * from stg_payments),
order_payments as (
    select order_id,
        """
    + ",\n        ".join(
        f"sum(case when payment_method = '{each}' then amount else 0 end) as {each}_amount"
        for each in _METHODS
    )
    + """,
        sum(amount) as total_amount
    from payments group by order_id),
final as (
    select orders.order_id, orders.customer_id, orders.order_date, orders.status,
        """
    + ", ".join(f"order_payments.{each}_amount" for each in _METHODS)
    + """, order_payments.total_amount as amount
    from orders left join order_payments on orders.order_id = order_payments.order_id)
select * from final""",
}
"""Models of dbt as it compiles them, and its order; each is a view for the next ones."""


def _lines(name: str) -> list[str]:
    return Path(__file__).with_name(name).read_text().splitlines()


GOOD: Final = _lines("good.sql")
"""Queries over `things` and TPC-H, one a line."""
HOSTILE: Final = _lines("hostile.sql")
"""Statements that read, write, run, see or cost what they must not, or are no query at all."""
