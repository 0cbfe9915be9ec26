create collation ignoring (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
create table person (name text collate ignoring primary key, german text collate "de-x-icu", plain text collate "C");
create index person_german on person (german); create index person_plain on person (plain text_pattern_ops);
insert into person values ('Ärger', 'Öl', 'b'), ('b', 'Zeit', 'A');
