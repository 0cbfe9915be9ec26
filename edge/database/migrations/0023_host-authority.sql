CREATE TABLE `host_authority` (
	`id` text PRIMARY KEY NOT NULL,
	`certificate` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_key` text NOT NULL,
	`created_at` integer NOT NULL
);
