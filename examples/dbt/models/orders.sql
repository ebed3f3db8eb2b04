{% set methods = ['credit_card', 'coupon', 'bank_transfer', 'gift_card'] %}
with orders as (
    select * from {{ ref('stg_orders') }}
),
order_payments as (
    select order_id,
        {% for method in methods %}
        sum(case when method = '{{ method }}' then amount else 0 end) as {{ method }}_amount,
        {% endfor %}
        sum(amount) as total
    from {{ ref('stg_payments') }} group by order_id
)
select orders.order_id, orders.customer_id, orders.ordered_on, orders.status,
    {% for method in methods %}
    order_payments.{{ method }}_amount,
    {% endfor %}
    order_payments.total as amount
from orders
left join order_payments on orders.order_id = order_payments.order_id
