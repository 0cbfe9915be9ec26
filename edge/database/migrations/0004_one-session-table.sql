-- One table of sessions and one of refresh tokens. SQLite cannot make a column nullable, so the tables are made again.
-- Grants come first and are dropped first: dropping a table deletes its rows, and grants with them.
CREATE TABLE `__new_sessions` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text,
	`person_id` text,
	`provider_id` text,
	`checked_at` integer,
	`key_id` text,
	`sealed_refresh` text,
	`ip` text,
	`user_agent` text,
	`last_used_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`person_id`) REFERENCES `provider_people`(`id`) ON UPDATE no action ON DELETE cascade,
	CONSTRAINT "sessions_holder" CHECK(("account_id" IS NULL) <> ("person_id" IS NULL)),
	CONSTRAINT "sessions_provider" CHECK(("person_id" IS NULL) = ("provider_id" IS NULL) AND ("person_id" IS NULL) = ("checked_at" IS NULL)),
	CONSTRAINT "sessions_sealed" CHECK(("key_id" IS NULL) = ("sealed_refresh" IS NULL) AND ("key_id" IS NULL OR "person_id" IS NOT NULL))
);
--> statement-breakpoint
INSERT INTO `__new_sessions` (`id`, `account_id`, `ip`, `user_agent`, `last_used_at`, `expires_at`, `created_at`)
SELECT `id`, `account_id`, `ip`, `user_agent`, `last_used_at`, `expires_at`, `created_at` FROM `sessions`;
--> statement-breakpoint
INSERT INTO `__new_sessions` (`id`, `person_id`, `provider_id`, `checked_at`, `key_id`, `sealed_refresh`, `ip`, `user_agent`, `last_used_at`, `expires_at`, `created_at`)
SELECT `id`, `person_id`, `provider_id`, `checked_at`, `key_id`, `sealed_refresh`, `ip`, `user_agent`, `last_used_at`, `expires_at`, `created_at` FROM `provider_sessions`;
--> statement-breakpoint
CREATE TABLE `__new_refresh_tokens` (
	`id` text PRIMARY KEY NOT NULL,
	`session_id` text NOT NULL,
	`used_at` integer,
	`expires_at` integer NOT NULL,
	FOREIGN KEY (`session_id`) REFERENCES `__new_sessions`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
INSERT INTO `__new_refresh_tokens` (`id`, `session_id`, `used_at`, `expires_at`)
SELECT `id`, `family_id`, `used_at`, `expires_at` FROM `refresh_tokens` WHERE `family_id` IN (SELECT `id` FROM `__new_sessions`)
UNION ALL
SELECT `id`, `family_id`, `used_at`, `expires_at` FROM `provider_refresh_tokens` WHERE `family_id` IN (SELECT `id` FROM `__new_sessions`);
--> statement-breakpoint
CREATE TABLE `__new_oauth_grants` (
	`id` text PRIMARY KEY NOT NULL,
	`client_id` text NOT NULL,
	`client_name` text NOT NULL,
	`role` text NOT NULL,
	`scopes` text NOT NULL,
	`permissions` text DEFAULT '[]' NOT NULL,
	`project_id` text,
	`branch_pattern` text,
	`session_id` text,
	`code_hash` text NOT NULL,
	`code_expires_at` integer NOT NULL,
	`redirect_uri` text NOT NULL,
	`code_challenge` text NOT NULL,
	`resource` text NOT NULL,
	`refresh_id` text,
	`previous_refresh_id` text,
	`refreshed_at` integer,
	`expires_at` integer NOT NULL,
	`last_used_at` integer,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`session_id`) REFERENCES `__new_sessions`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
INSERT INTO `__new_oauth_grants` (`id`, `client_id`, `client_name`, `role`, `scopes`, `permissions`, `project_id`, `branch_pattern`, `session_id`, `code_hash`, `code_expires_at`, `redirect_uri`, `code_challenge`, `resource`, `refresh_id`, `previous_refresh_id`, `refreshed_at`, `expires_at`, `last_used_at`, `created_by`, `tenant_id`, `created_at`)
SELECT `id`, `client_id`, `client_name`, `role`, `scopes`, `permissions`, `project_id`, `branch_pattern`, coalesce(`session_id`, `provider_session_id`), `code_hash`, `code_expires_at`, `redirect_uri`, `code_challenge`, `resource`, `refresh_id`, `previous_refresh_id`, `refreshed_at`, `expires_at`, `last_used_at`, `created_by`, `tenant_id`, `created_at` FROM `oauth_grants`;
--> statement-breakpoint
-- Unused since 0003_changes: replaced above, and no version with this table was released
DROP TABLE `oauth_grants`;
--> statement-breakpoint
-- Unused since 0003_changes: replaced above, and no version with this table was released
DROP TABLE `provider_refresh_tokens`;
--> statement-breakpoint
-- Unused since 0003_changes: replaced above, and no version with this table was released
DROP TABLE `refresh_tokens`;
--> statement-breakpoint
-- Unused since 0003_changes: replaced above, and no version with this table was released
DROP TABLE `provider_sessions`;
--> statement-breakpoint
-- Unused since 0003_changes: replaced above, and no version with this table was released
DROP TABLE `sessions`;
--> statement-breakpoint
-- Unused since 0003_changes: the names of the tables above
ALTER TABLE `__new_sessions` RENAME TO `sessions`;
--> statement-breakpoint
-- Unused since 0003_changes: the names of the tables above
ALTER TABLE `__new_refresh_tokens` RENAME TO `refresh_tokens`;
--> statement-breakpoint
-- Unused since 0003_changes: the names of the tables above
ALTER TABLE `__new_oauth_grants` RENAME TO `oauth_grants`;
--> statement-breakpoint
CREATE INDEX `sessions_by_account` ON `sessions` (`account_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `sessions_by_person` ON `sessions` (`person_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `sessions_by_expiry` ON `sessions` (`expires_at`);--> statement-breakpoint
CREATE INDEX `refresh_tokens_by_session` ON `refresh_tokens` (`session_id`);--> statement-breakpoint
CREATE INDEX `refresh_tokens_by_expiry` ON `refresh_tokens` (`expires_at`);--> statement-breakpoint
CREATE UNIQUE INDEX `oauth_grants_code_hash_unique` ON `oauth_grants` (`code_hash`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_tenant` ON `oauth_grants` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_user` ON `oauth_grants` (`created_by`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_client` ON `oauth_grants` (`client_id`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_project` ON `oauth_grants` (`project_id`);--> statement-breakpoint
CREATE INDEX `oauth_grants_by_session` ON `oauth_grants` (`session_id`);
