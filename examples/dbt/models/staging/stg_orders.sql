with source as (
    select * from {{ ref('orders_raw') }}
)
select id as order_id, customer as customer_id, ordered_on, status from source
