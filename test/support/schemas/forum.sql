-- As a forum has it: tsvector columns with weights, hstore, read-only columns by functions of a schema, unlogged tables, views of ranks.
CREATE EXTENSION hstore; CREATE EXTENSION unaccent; CREATE EXTENSION citext;
CREATE SCHEMA functions;
CREATE FUNCTION functions.raise_read_only_topics_old_title() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the column old_title is read-only'; END $$;
CREATE TYPE hotlinked_media_status AS ENUM ('downloaded', 'too_large', 'download_failed', 'upload_create_failed');
CREATE TABLE users (id serial PRIMARY KEY, username varchar(60) NOT NULL, email citext UNIQUE, trust_level int NOT NULL, admin boolean DEFAULT false NOT NULL, custom hstore, date_of_birth date, CONSTRAINT trusted CHECK (trust_level BETWEEN 0 AND 4));
CREATE TABLE categories (id serial PRIMARY KEY, name varchar(50) NOT NULL, slug varchar NOT NULL DEFAULT '', parent_category_id int, position int, style int DEFAULT 0, read_restricted boolean DEFAULT false NOT NULL);
CREATE UNIQUE INDEX unique_category ON categories (coalesce(parent_category_id, -1), name);
CREATE TABLE topics (id serial PRIMARY KEY, title varchar NOT NULL, fancy_title varchar, old_title varchar, category_id int, user_id int, archetype varchar DEFAULT 'regular' NOT NULL, deleted_at timestamp, bumped_at timestamp NOT NULL,
  CONSTRAINT has_category_id CHECK (category_id IS NOT NULL OR archetype <> 'regular'), CONSTRAINT pm_has_no_category CHECK (category_id IS NULL OR archetype <> 'private_message'));
CREATE TRIGGER topics_old_title_readonly BEFORE INSERT OR UPDATE OF old_title ON topics FOR EACH ROW WHEN (new.old_title IS NOT NULL) EXECUTE FUNCTION functions.raise_read_only_topics_old_title();
CREATE INDEX topics_recent ON topics (bumped_at DESC) WHERE deleted_at IS NULL AND archetype <> 'private_message';
CREATE TABLE posts (id serial PRIMARY KEY, topic_id int NOT NULL, user_id int, post_number int NOT NULL, raw text NOT NULL, cooked text NOT NULL, image_upload_id bigint, version int DEFAULT 1 NOT NULL, UNIQUE (topic_id, post_number));
CREATE TABLE post_search_data (post_id int PRIMARY KEY, search_data tsvector, raw_data text, locale varchar, version int DEFAULT 0);
CREATE INDEX idx_search_post ON post_search_data USING gin (search_data) WITH (fastupdate = off);
CREATE TABLE post_hotlinked_media (id bigserial PRIMARY KEY, post_id bigint NOT NULL, url varchar NOT NULL, status hotlinked_media_status NOT NULL, upload_id bigint);
CREATE UNIQUE INDEX media_of_post ON post_hotlinked_media (post_id, md5(url));
CREATE UNLOGGED TABLE scheduler_stats (id serial PRIMARY KEY, name varchar NOT NULL, hostname varchar, live_slots_start int);
CREATE TEXT SEARCH CONFIGURATION forum (COPY = simple);
ALTER TEXT SEARCH CONFIGURATION forum ALTER MAPPING FOR hword, hword_part, word WITH unaccent, simple;
CREATE VIEW badge_posts AS SELECT p.id, p.topic_id, t.title, c.name AS category FROM posts p JOIN topics t ON t.id = p.topic_id JOIN categories c ON c.id = t.category_id WHERE c.read_restricted = false;
CREATE VIEW directory AS SELECT u.id, u.username, count(p.id) AS posts, rank() OVER (ORDER BY count(p.id) DESC) FROM users u LEFT JOIN posts p ON p.user_id = u.id GROUP BY u.id;
COMMENT ON COLUMN topics.old_title IS 'it is gone in the next version';
