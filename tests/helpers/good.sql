select * from things
select id, kind from things where price > :rate and kind = :word
select id, sum(price) over (partition by kind order by id rows between 1 preceding and current row) s from things
select id, rank() over w r, lag(price, 1) over w l from things window w as (partition by kind order by price desc nulls last, id)
select kind, id from things qualify row_number() over (partition by kind order by id) = 1
select first_value(note) ignore nulls over (order by id rows between unbounded preceding and unbounded following) f, id from things
select avg(price) over (order by day range between interval 3 days preceding and current row) a, id from things
select * from (select kind, id % 3 m, price from things) pivot (sum(price) as s for m in (0 as zero, 1, 2))
select * from (select id, price, id * 2 as twice from things) unpivot (v for n in (price, twice))
select id, x from things lateral view explode(tags) e as x
select id, i, x from things lateral view outer posexplode(tags) e as i, x where x is not null
select t.id, e.x from things t, lateral explode(t.words) as e(x)
select id, explode(words) as w from things
select inline(array(named_struct('a', id, 'b', kind))) from things
select stack(2, id, 'x', id + 1, 'y') as (n, m) from things
select json_tuple(document, 'a', 'b') as (a, b) from things
select kind, count(*) n from things group by kind having count(*) > 1 and max(price) > 0
select kind, id % 2 as odd, sum(price) s, grouping_id() g from things group by grouping sets ((kind, id % 2), (kind), ())
select kind, id % 2 as odd, count(*) n from things group by cube (kind, id % 2)
select kind, count(*) n from things group by kind with rollup
select kind, count(*) n from things group by all order by all
select count(distinct kind) d, count_if(id > 3) c, sum(price) filter (where id % 2 = 0) f from things
select max_by(id, price) m, min_by(id, price) i, any_value(1) a, bool_and(id >= 0) b from things
select percentile(price, 0.5) p, approx_percentile(price, 0.5) q, stddev_samp(price) s, corr(id, price) c from things
select percentile_cont(0.5) within group (order by price) p, listagg(kind, ',') within group (order by id) l from things
select array_sort(collect_list(id)) l, sort_array(collect_set(kind)) s from things
select transform(tags, x -> x + 1) t, filter(tags, x -> x is not null and x > :least) f from things
select aggregate(filter(tags, x -> x is not null), 0L, (acc, x) -> acc + x, acc -> acc * 2) a from things
select transform(words, (w, i) -> concat(w, i)) t, exists(tags, x -> x > 3) e, forall(words, w -> w <> '') f from things
select zip_with(array(1, 2), array(3, 4), (x, y) -> x * y) z, array_join(words, '-') j from things
select transform_values(pairs, (k, v) -> v + 1)['k'] v, map_filter(pairs, (k, v) -> v > 10) m, map_keys(pairs) k from things
select tags[0] a, element_at(tags, 1) b, try_element_at(tags, 9) c, pairs['l'] d, size(tags) s, slice(tags, 1, 2) e from things
select place.city, place.geo.lat, t.place.geo.lat * 2 as twice, struct(id as a, kind as b).b from things t
select array(1, 2, 3) a, map('x', 1) m, named_struct('y', 2).y, (select struct(7 as q)).q
select case kind when 'a' then 1 when 'b' then 2 else 0 end c, case when id > 5 then 'late' end l from things
select if(id > 3, 'x', 'y') i, coalesce(note, '-') c, nullif(kind, 'a') n, nvl(note, '') v, nvl2(note, 1, 0) w from things
select cast(price as decimal(20, 4)) d, cast(id as string) s, try_cast(note as int) t, id::double f, int(price) i from things
select price * 2 + 1 - 3 / 4 % 5 a, id div 2 b, -id c, +id d, pmod(id, 3) p, abs(-price) q from things
select id & 1 a, id | 2 b, id ^ 3 c, ~id d, shiftleft(id, 1) e, bit_count(id) f from things
select round(price, 1) a, bround(price, 0) b, floor(price) c, ceil(price, 1) d, greatest(id, 5) g, least(id, 5) l from things
select date_add(day, 1) a, date_sub(day, 1) b, datediff(day, date '2024-01-01') c, add_months(day, 1) d, last_day(day) e from things
select date_trunc('MONTH', at) a, trunc(day, 'YEAR') b, extract(month from day) c, year(day) y, date_format(at, 'yyyy-MM') f from things
select day + interval '1' month a, day - interval 2 weeks b, at + interval '1' day + interval '2' hour c from things
select dateadd(month, 1, day) a, timestampdiff(hour, at, timestamp '2024-01-01 00:00:00') b, date_diff(day, day, day) c from things
select to_date('2024-02-29') a, to_timestamp('2024-02-29 01:02:03') b, make_date(2024, 1, 2) c, unix_timestamp(at) d from things
select to_date('29/02/2024', 'dd/MM/yyyy') a, months_between(day, date '2024-01-01') b, dayofweek(day) c, weekofyear(day) d from things
select explode(sequence(date '2024-01-01', date '2024-01-05', interval 1 day)) d
select explode(sequence(min(day), max(day), interval '1' week)) w from things
select sequence(1, 5) a, sequence(10, 1, -3) b, sequence(0, greatest(least(id, 10), 0)) c from things
select upper(kind) u, substring(note, 1, 3) s, substr(note, 2) b, left(note, 2) l, right(note, 1) r, trim(both 'x' from kind) t from things
select 'a' || kind || note c, concat_ws('-', kind, id) w, replace(note, 's', 'z') p, split(note, ' ')[0] q from things
select regexp_replace(note, '(\\d+)', '<$1>') a, regexp_extract(note, '(\\w+)', 1) b, note rlike '\\\\' c, note like '%\\\\%' d from things
select note like 'it!_%' escape '!' a, note ilike 'IT%' b, kind like any ('a', 'b%') c, kind not like 'c' d, note not rlike r'\d' e from things
select lpad(kind, 5, '.') a, rpad(kind, least(3, 4), '_') b, repeat(kind, 3) r, space(2) s, initcap(kind) i, reverse(kind) v from things
select position('i' in note) p, locate('t', note) l, instr(note, 's') i, overlay(note placing 'X' from 2) o, char_length(note) n from things
select format_string('%05.2f %s', cast(price as double), kind) f, format_number(price, 1) n, to_char(price, '999.99') c from things
select get_json_object(document, '$.a') a, from_json(document, 'a INT, b ARRAY<INT>').b[1] b, to_json(place) j from things
select md5(kind) m, sha2(kind, 256) s, crc32(kind) c, xxhash64(id) x, hex(kind) h, base64(kind) b from things
select 'it''s' a, "dou""ble" b, 'tab\tnew\nline' c, '\u00e9\101' d, r'raw\n' e, 'back\\slash' f, '$' || '{x}' g, X'0aFF' h
select 1 a, 1L b, 1S c, 1Y d, 1.5 e, 1.50BD f, 1e3 g, 1.5D h, 2F i, .5 j, -7 k, 9999999999 l
select null a, true b, not false c, 1 <=> null d, 1 is distinct from 2 e, null is null f, (1 = 1) is true g
select id between 2 and 4 a, id not between 2 and 4 b, id in (1, 2) c, kind not in ('a', 'b') d, not (id > 1 or id < 0) e from things
select * except (tags, words, pairs, place) from things
select t.*, u.kind as other from things t join (select id, kind from things) u on t.id = u.id + 1
select t.id from things t left semi join nation n on t.id = n.n_nationkey
select t.id from things t left anti join nation on t.id = nation.n_nationkey
select a.id, b.id as b from things a full outer join (select id + 6 as id from things) b on a.id = b.id and a.kind <> ''
select id, kind, n from things join (select kind, count(*) n from things group by kind) using (kind)
select a.id from things a, things b where a.id = b.id and a.price >= b.price
select t.id, m.top from things t cross join (select max(price) as top from things) m
select t.id, v.name from things t, (values (0, 'x'), (1, 'y')) as v(n, name) where t.id > v.n
select id, (select max(n_name) from nation) top from things where id in (select n_nationkey from nation)
select id from things t where exists (select 1 from nation n where n.n_nationkey = t.id and n.n_name > 'C')
select id from things where price > (select avg(price) from things) and not exists (select 1 from nation where n_nationkey = id)
select id from things union all select n_nationkey from nation union select 1 order by 1 limit 7 offset 1
(select id from things) except (select n_nationkey from nation) intersect select id from things where id > 1
select id from things minus select 3
values (1, 'a'), (2, 'b')
select * from values (1, 'a'), (2, null) as v(x, y) where y is null
select x from range(1, 10, 3) as r(x)
with a as (select id from things where id > 2), b as (select id * 2 as id from a) select * from a union all select * from b
select * from (with a as (select 1 as x) select * from a) a1 join (with a as (select 1 as x, 2 as y) select * from a) a2 on a1.x = a2.x
from things select id where id < 3
select /* a comment */ id from things; -- another
select `id` as `a b`, "kind" as `select` from `things` as `from`
select distinct kind, id % 2 from things order by kind desc nulls first, 2 limit 3
select sum(id) s, sum(distinct id % 3) d from things where day >= to_date(:since) limit all
select schema_of_json('{"a": 1}') s, typeof(1) t, hash(1, 'a') h
select try_divide(id, 0) a, try_add(id, 1) b, try_sum(id) c from things group by id
select (id, kind) as pair from things
select id from things where (id, kind) in (select id, kind from things where id > 4)
select arrays_zip(array(1), array('x')) z, flatten(array(array(1), array(2))) f, array_repeat('x', 3) r, map_from_arrays(array('a'), array(1)) m
select kind, sum(price) over (partition by kind) / sum(price) over () share from things
select 0 a where 1 = 1 having true
select kind = 'Today is nice' a, 'nowhere' b from things
select 1 one from (select id from things), (select n_nationkey from nation) where id = n_nationkey
select array_distinct(tags) a, array_contains(words, 'x') b, array_max(tags) c, array_position(words, 'x') d from things
