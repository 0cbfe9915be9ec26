CREATE TABLE `tenant_caps` (
	`tenant_id` text PRIMARY KEY NOT NULL,
	`project_limit` integer,
	`storage_quota_limit_gib` real,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `accounts_by_tenant` ON `accounts` (`tenant_id`);