CREATE TABLE `api_keys` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`secret_hash` text NOT NULL,
	`role` text NOT NULL,
	`scopes` text NOT NULL,
	`project_id` text,
	`branch_pattern` text,
	`cidrs` text,
	`expires_at` integer NOT NULL,
	`last_used_at` integer,
	`created_by` text NOT NULL,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `api_keys_by_tenant` ON `api_keys` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE TABLE `trusts` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`issuer` text NOT NULL,
	`audience` text NOT NULL,
	`claims` text NOT NULL,
	`role` text NOT NULL,
	`branch_pattern` text,
	`last_used_at` integer,
	`created_by` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `trusts_by_project` ON `trusts` (`project_id`,`created_at`,`id`);--> statement-breakpoint
ALTER TABLE `audit_events` ADD `actor_type` text;--> statement-breakpoint
-- Until now every author was a user.
UPDATE `audit_events` SET `actor_type` = 'user' WHERE `actor_id` IS NOT NULL;
