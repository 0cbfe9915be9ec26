-- As a federated social network has it: ids by a function with its own sequences, materialized views with keys, views over them.
CREATE FUNCTION stamp_id(table_name text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
  DECLARE time_part bigint; tail bigint;
  BEGIN
    time_part := (date_part('epoch', now()) * 1000)::bigint << 16;
    tail := ('x' || substr(md5(table_name || date_part('epoch', now())::text), 1, 4))::bit(16)::bigint;
    RETURN time_part | (tail + nextval(table_name || '_id_seq') & 65535);
  END $$;
CREATE SEQUENCE accounts_id_seq; CREATE SEQUENCE posts_id_seq;
CREATE TABLE accounts (id bigint DEFAULT stamp_id('accounts') PRIMARY KEY, username varchar DEFAULT '' NOT NULL, domain varchar, note text DEFAULT '' NOT NULL, fields jsonb, locked boolean DEFAULT false NOT NULL, moved_to bigint REFERENCES accounts ON DELETE SET NULL, also_known_as varchar[]);
CREATE UNIQUE INDEX accounts_name ON accounts (lower(username), coalesce(lower(domain), ''));
CREATE INDEX accounts_search ON accounts USING gin ((setweight(to_tsvector('simple', username), 'A') || setweight(to_tsvector('simple', coalesce(domain, '')), 'C')));
CREATE INDEX accounts_domain ON accounts (domain varchar_pattern_ops);
CREATE TABLE posts (id bigint DEFAULT stamp_id('posts') PRIMARY KEY, account_id bigint NOT NULL REFERENCES accounts ON DELETE CASCADE, text text DEFAULT '' NOT NULL, visibility smallint DEFAULT 0 NOT NULL, reblog_of_id bigint REFERENCES posts ON DELETE CASCADE, deleted_at timestamp(6), language varchar, created_at timestamp(6) DEFAULT CURRENT_TIMESTAMP NOT NULL);
CREATE INDEX posts_of_account ON posts (account_id, id DESC, visibility, created_at) WHERE deleted_at IS NULL;
ALTER TABLE posts ALTER text SET STATISTICS 500;
CREATE TABLE follows (id bigserial PRIMARY KEY, account_id bigint NOT NULL, target_account_id bigint NOT NULL, languages varchar[], UNIQUE (account_id, target_account_id));
ALTER TABLE follows ADD FOREIGN KEY (account_id) REFERENCES accounts ON DELETE CASCADE, ADD FOREIGN KEY (target_account_id) REFERENCES accounts ON DELETE CASCADE;
CREATE TABLE account_stats (account_id bigint PRIMARY KEY, posts_count bigint DEFAULT 0, followers_count bigint DEFAULT 0, last_post_at timestamp) WITH (autovacuum_vacuum_scale_factor = 0.05, fillfactor = 80);
CREATE MATERIALIZED VIEW instances AS WITH domain_counts AS (SELECT domain, count(*) AS accounts_count FROM accounts WHERE domain IS NOT NULL GROUP BY domain) SELECT domain, accounts_count FROM domain_counts;
CREATE UNIQUE INDEX instances_domain ON instances (domain);
CREATE INDEX instances_reversed ON instances (reverse('.' || domain), domain);
CREATE MATERIALIZED VIEW follow_recommendations AS SELECT a.id AS account_id, sum(s.followers_count) AS rank, array_agg(a.domain) AS reason FROM accounts a JOIN account_stats s ON s.account_id = a.id GROUP BY a.id ORDER BY sum(s.followers_count) DESC;
CREATE UNIQUE INDEX ON follow_recommendations (account_id);
CREATE VIEW large_instances AS SELECT domain FROM instances WHERE accounts_count > 100;
CREATE VIEW user_ips AS SELECT account_id AS user_id, last_post_at AS used_at FROM (SELECT account_id, last_post_at FROM account_stats UNION ALL SELECT id AS account_id, NULL::timestamp AS last_post_at FROM accounts) AS t0;
