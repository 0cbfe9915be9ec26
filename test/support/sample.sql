-- A small bookshop, written for these tests: keys, sequences, a view, a function, an enum, an array, a trigger.
create type binding as enum ('hard', 'soft', 'none');
create table author (author_id serial primary key, name text not null);
create table book (
  isbn text primary key,
  author_id int not null references author,
  title text not null,
  price numeric(8, 2) not null check (price >= 0),
  binding binding not null default 'soft',
  tags text[] not null default '{}',
  cover bytea,
  added timestamptz not null
);
create index book_by_author on book (author_id, title);
create view cheap_book as select isbn, title from book where price < 10;
create table sale (sale_id bigint generated always as identity primary key, isbn text references book, amount int not null);
create function author_of(wanted text) returns text language sql stable
  as 'select name from author join book using (author_id) where isbn = wanted';
create function keep_amount() returns trigger language plpgsql
  as 'begin if new.amount <= 0 then raise exception ''amount''; end if; return new; end';
create trigger sale_amount before insert on sale for each row execute function keep_amount();
insert into author (name) select 'Author ' || n from generate_series(1, 40) n;
insert into book
  select 'isbn-' || n, 1 + n % 40, 'Title ' || n, n % 50, (enum_range(null::binding))[1 + n % 3],
    array['t' || n % 7, 'ü'], decode(md5(n::text), 'hex'), timestamptz '2026-01-01 00:00Z' + n * interval '1 hour'
  from generate_series(1, 800) n;
insert into sale (isbn, amount) select 'isbn-' || 1 + n % 800, 1 + n % 5 from generate_series(1, 2000) n;
