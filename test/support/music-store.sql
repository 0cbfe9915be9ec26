-- A store of the shape and size of the Chinook sample database: eleven tables, a table that refers to itself, one whose
-- key has two columns, text with marks and scripts of many languages. Rows are made up.
create table artist (artist_id serial primary key, name varchar(120));
create table album (album_id serial primary key, title varchar(160) not null, artist_id int not null references artist);
create table genre (genre_id serial primary key, name varchar(120));
create table media_type (media_type_id serial primary key, name varchar(120));
create table track (
  track_id serial primary key, name varchar(200) not null, album_id int references album,
  media_type_id int not null references media_type, genre_id int references genre, composer varchar(220),
  milliseconds int not null, bytes int, unit_price numeric(10, 2) not null
);
create table playlist (playlist_id serial primary key, name varchar(120));
create table playlist_track (
  playlist_id int references playlist, track_id int references track, primary key (playlist_id, track_id)
);
create table employee (
  employee_id serial primary key, last_name varchar(20) not null, first_name varchar(20) not null,
  title varchar(30), reports_to int references employee, hire_date timestamp, email varchar(60)
);
create table customer (
  customer_id serial primary key, first_name varchar(40) not null, last_name varchar(20) not null,
  company varchar(80), country varchar(40), email varchar(60) not null, support_rep_id int references employee
);
create table invoice (
  invoice_id serial primary key, customer_id int not null references customer, invoice_date timestamp not null,
  billing_country varchar(40), total numeric(10, 2) not null
);
create table invoice_line (
  invoice_line_id serial primary key, invoice_id int not null references invoice, track_id int not null references track,
  unit_price numeric(10, 2) not null, quantity int not null
);
create index track_by_album on track (album_id);
create index invoice_line_by_invoice on invoice_line (invoice_id);

insert into artist (name)
  select (array['Ádám', 'Σίγμα', 'ひばり', 'Björk & Co.', 'O''Neill "Live"'])[1 + n % 5] || ' ' || n from generate_series(1, 275) n;
insert into album (title, artist_id) select 'Album ' || n, 1 + n % 275 from generate_series(1, 347) n;
insert into genre (name) select 'Genre ' || n from generate_series(1, 25) n;
insert into media_type (name) select 'Type ' || n from generate_series(1, 5) n;
insert into track (name, album_id, media_type_id, genre_id, composer, milliseconds, bytes, unit_price)
  select 'Track ' || n, 1 + n % 347, 1 + n % 5, 1 + n % 25, case when n % 3 > 0 then 'Composer ' || n % 90 end,
    120000 + n * 37 % 300000, 4000000 + n, 0.99 + n % 2 from generate_series(1, 3503) n;
insert into playlist (name) select 'Playlist ' || n from generate_series(1, 18) n;
insert into playlist_track select 1 + n % 18, 1 + n / 18 from generate_series(0, 8714) n;
insert into employee (last_name, first_name, title, reports_to, hire_date, email)
  select 'Last ' || n, 'First ' || n, 'Agent', nullif(n / 2, 0), timestamp '2020-01-01' + n * interval '1 day',
    n || '@example.com' from generate_series(1, 8) n;
insert into customer (first_name, last_name, company, country, email, support_rep_id)
  select 'First ' || n, 'Last ' || n, null, 'Country ' || n % 24, n || '@example.org', 3 + n % 3
  from generate_series(1, 59) n;
insert into invoice (customer_id, invoice_date, billing_country, total)
  select 1 + n % 59, timestamp '2024-01-01' + n * interval '4 days', 'Country ' || n % 24, n % 25 + 0.99
  from generate_series(1, 412) n;
insert into invoice_line (invoice_id, track_id, unit_price, quantity)
  select 1 + n % 412, 1 + n % 3503, 0.99, 1 from generate_series(1, 2240) n;
