with source as (
    select * from {{ ref('customers_raw') }}
)
select id as customer_id, first_name, last_name from source
