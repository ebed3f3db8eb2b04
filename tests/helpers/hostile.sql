select reflect('java.lang.System', 'getProperty', 'user.name')
select java_method('java.lang.System', 'getenv', 'PATH')
select try_reflect('java.lang.System', 'exit', 1)
select REFLECT ('java.lang.Runtime', 'getRuntime')
select `reflect`('java.lang.System', 'getProperty', 'user.name')
select reflect/**/('java.lang.System', 'getProperty', 'user.name')
select system.builtin.reflect('java.lang.System', 'getProperty', 'user.name')
select builtin.reflect('java.lang.System', 'getProperty', 'user.name') from things
select id from things where reflect('java.lang.System', 'getProperty', 'x') is null
select id from things order by java_method('java.lang.Math', 'random')
select transform(tags, x -> reflect('java.lang.System', 'getProperty', 'a')) from things
with reflect(a) as (select 1) select reflect('java.lang.System', 'getProperty', 'user.name') from reflect
select * from text.`/etc/passwd`
select * from csv.`/etc/passwd`
select * from json.`/etc/passwd`
select * from parquet.`/var/lib/tables`
select * from orc.`/var/lib/tables`
select * from avro.`/var/lib/tables`
select * from delta.`/var/lib/tables`
select * from binaryFile.`/etc/shadow`
select * from `text`.`/etc/passwd`
select * from text.`file:///etc/passwd` as things
table text.`/etc/passwd`
from text.`/etc/passwd` select *
select * from things join text.`/etc/passwd` p on p.value = things.note
select * from things, text.`/etc/passwd` p where p.value = things.note
select (select max(value) from text.`/etc/passwd`)
select id from things where note in (select value from text.`/etc/passwd`)
select id from things where exists (select 1 from text.`/etc/passwd`)
select id from things order by (select max(value) from text.`/etc/passwd`)
select case when true then (select max(value) from text.`/etc/passwd`) end
select id from things group by id having max(id) > (select count(*) from text.`/etc/passwd`)
select sum(id) over (partition by (select max(value) from text.`/etc/passwd`)) from things
select id from things limit (select count(*) from text.`/etc/passwd`)
select note -> 0.50 from things
select transform(tags, x -> (select max(value) from text.`/etc/passwd`)) from things
select * from things pivot (max((select value from text.`/etc/passwd`)) for kind in ('a'))
values ((select max(value) from text.`/etc/passwd`))
with things as (select * from text.`/etc/passwd`) select * from things
with a as (select * from text.`/etc/passwd`) select * from a
select * from (with a as (select * from text.`/etc/passwd`) select * from a)
select id from things union all select value from text.`/etc/passwd`
select * from identifier('text.`/etc/passwd`')
select * from identifier(:word)
select identifier('reflect')('java.lang.System', 'getProperty', 'user.name')
select identifier('id') from things
select * from read_files('/etc/passwd')
select * from secret
select * from global_temp.secret
select * from default.things
select * from spark_catalog.default.things
select * from information_schema.tables
select * from system.session.things
select * from (select * from (with hidden as (select 1 as x) select * from hidden)) a, hidden where a.x = hidden.x
select * from table(secret)
select * from stream(things)
select transform(id) using 'cat' from things
select transform(id, kind) using '/bin/sh -c id' as (a string) from things
from things map id using 'cat' as (a)
from things reduce id using 'cat' as (a)
select '${env:HOME}' as `${env:HOME}`
select ${env:HOME}
select 1 as `${spark.app.name}`
select `${system:user.name}` from things
select user
select id from things where kind = session_user
select `user` from things
select current_user()
select current_user
select current_catalog()
select current_database()
select current_schema()
select version()
select current_date
select current_date()
select current_timestamp
select now()
select curdate()
select localtimestamp
select current_time()
select current_timezone()
select unix_timestamp()
select rand()
select randn(1)
select random()
select uuid()
select shuffle(tags) from things
select randstr(5)
select uniform(1, 5)
select monotonically_increasing_id()
select spark_partition_id()
select input_file_name()
select input_file_block_start()
select _metadata.file_path from things
select things._metadata from things
select id from things tablesample (10 percent)
select id from things tablesample (3 rows)
select id from things version as of 1
select id from things timestamp as of '2024-01-01'
select id from things@v1
select /*+ broadcast(things) */ id from things
select /*+ repartition(100000) */ id from things
select id from things distribute by id
select from_avro(note, 'x') from things
select from_protobuf(note, 'x', '/etc/passwd') from things
select from_xml('<a/>', 'a int')
select xpath('<a/>', '/a')
select aes_encrypt('a', '0000111122223333')
select raise_error('x')
select assert_true(false)
select sql_keywords()
select * from sql_keywords()
select collations()
select python_worker_logs()
select hll_sketch_agg(id, 21) from things
select my_function(id) from things
select note collate UNICODE_CI from things
select parse_json('1'):a
select {things}
select ?
select :1
select @@version
select id into t2 from things
select * from things for update
create table t (a int)
create table t using csv location '/etc' as select 1
create temporary view v using csv options (path '/etc/passwd')
create temporary view v using jdbc options (url 'jdbc:x', dbtable 'y')
create view v as select 1
create function f as 'java.lang.Runtime' using jar '/tmp/x.jar'
create temporary function f() returns int return 1
insert into things values (1)
insert overwrite local directory '/tmp/x' using csv select * from things
insert overwrite directory '/tmp/x' using parquet select 1
insert overwrite things select 1
merge into things using things s on s.id = things.id when matched then delete
update things set id = 1
delete from things
truncate table things
drop table things
drop view things
alter table things rename to t
load data inpath '/etc/passwd' into table things
copy into things from '/etc'
add jar '/tmp/x.jar'
add file '/etc/passwd'
list files
list jars
set spark.sql.runSQLOnFiles=true
set
reset
set var x = 1
declare variable x int default 1
execute immediate 'select 1'
execute immediate :word
show tables
show functions
describe table things
describe query select * from text.`/etc/passwd`
explain select 1
explain extended select * from things
cache table things
cache table c as select * from text.`/etc/passwd`
uncache table things
clear cache
refresh '/etc/passwd'
refresh table things
analyze table things compute statistics
use default
call system.run('x')
begin select 1; end
begin declare x int; set x = 1; end
if 1 = 1 then select 1; end if
while true do select 1; end while
comment on table things is 'x'
msck repair table things
grant select on things to public
select 1; select 2
select 1; drop table things
select 1; set spark.sql.runSQLOnFiles=true
with recursive r(n) as (select 1 union all select n + 1 from r) select * from r
with recursive r(n) max recursion level 100000 as (select 1 union all select n + 1 from r) select * from r
with a as (select * from a) select * from a
with a as (select 1), a as (select 2) select * from a
select * from things a, things b
select * from things a join things b
select * from things a cross join things b
select * from things a join things b on true
select * from things a join things b on 1 = 1
select * from things a join things b on a.id = 1 and b.id = 1
select * from things a join things b on a.id > b.id
select * from things a join things b on a.id = b.id or true
select * from things a join things b on a.id = b.id or a.kind = b.kind
select * from things a left join things b on a.id <> b.id
select * from things a left join things b on true where a.id = b.id
select * from things a natural join things b
select * from things a, things b where a.id = a.id
select * from things a, things b where a.id = b.id or a.price > 0
select * from things a, things b, things c, things d, things e
select * from things a, things b, things c where id = id and kind = kind and id = id
select * from things a, (select * from nation) b
select * from things a, lateral (select * from nation) b
select * from things a join lateral (select * from nation) b on true
select * from things a where exists (select 1 from things b where b.id <> a.id)
select * from things a, (select n_name from nation limit 100000) b, (select n_name from nation limit 100000) c
select * from things, range(100000) a, range(100000) b
select explode(sequence(1, 1000000000))
select sequence(id, price) from things
select sequence(0, :least)
select sequence(0, 1000000, 0.000001)
select sequence(timestamp '2024-01-01 00:00:00', timestamp '2025-01-01 00:00:00', interval '1' second)
select sequence(day, day, interval '0' day) from things
select repeat('x', 1000000000)
select repeat('x', id) from things
select repeat('x', -least(-1, -1000000000))
select repeat(repeat(repeat('x', 10000), 10000), 10000)
select space(2000000000)
select lpad('x', 2000000000, 'y')
select rpad('x', id) from things
select array_repeat(1, 2000000000)
select array_insert(tags, 2000000000, 1) from things
select stack(100000000, 1)
select format_string('%999999999d', 1)
select printf(note, 1) from things
select format_number(1.5, 2000000000)
select round(1.5D, 2147483647)
select round(1.5D, -2147483647)
select approx_count_distinct(id, 0.0000001) from things
select * from range(10000000000)
select * from range(0, 10, 1, 1000000)
select * from range((select max(id) from things))
select kind, count(*) from things group by cube (id, kind, day, at, price, note, tags, words, 1, 2, 3)
select x'zz'
select cast(note as variant) from things
select 'a' 'b'
select a = b = c from things
select
selec id from things
select id from
select (id from things
select id from things)
select 'open
select `open
select "open
select \ from things
/* open
--
;
()
select cast(1 as reflect)
select id as :word from things
select 0x1F
select interval '90' day (3)
select id from things lateral view reflect('java.lang.System', 'getProperty') r as x
select id from things lateral view explode(tags) `e AS x WHERE 1=1 --` as x
select * from things as `a``; drop table x`
select * from things t(a, reflect('x'))
select date_add(reflect, 1, day) from things
select extract(reflect('x') from day) from things
select interval reflect('x') day
select trim(both reflect('x') from note) from things
select id from things where id = any (select 1)
select id from things where id = all (select n_nationkey from nation)
select id from things order by id limit reflect('x')
select first(id) within group (order by reflect('x')) from things
select sum(id) over (order by id rows between reflect('x') preceding and current row) from things
select * from unnest(array(1))
select * from json_table('[]', '$' columns (a int path '$'))
select * from things match_recognize (order by id measures 1 as m pattern (a) define a as true)
select * from xmltable('/a' passing '<a/>' columns x int)
select distinct on (kind) id from things
select top 5 id from things
select * replace (1 as id) from things
select id from things settings x = 1
select next value for seq
select try(1)
select cast(1 as int format 'x')
select 1 from things, things
select 1 from things join things on things.id = things.id
select 1 from (select * from things), (select * from things)
select 1 from (select * from things) join (select * from things) on true
select 1 from (select * from things), (select * from nation) where kind = 'a'
select cast(place as struct<:word: int>) from things
select sequence()
select format_string()
