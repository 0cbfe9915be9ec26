CREATE TABLE `recovery_codes` (
	`issuer` text NOT NULL,
	`gid` text NOT NULL,
	`hash` text NOT NULL,
	PRIMARY KEY(`issuer`, `gid`, `hash`)
);
--> statement-breakpoint
CREATE TABLE `sessions` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`ip` text,
	`user_agent` text,
	`last_used_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `sessions_by_account` ON `sessions` (`account_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `sessions_by_expiry` ON `sessions` (`expires_at`);--> statement-breakpoint
CREATE TABLE `invitations` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`email` text NOT NULL,
	`role` text NOT NULL,
	`invited_by` text NOT NULL,
	`expires_at` integer NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`invited_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `invitations_once` ON `invitations` (`tenant_id`,`email`);--> statement-breakpoint
CREATE INDEX `invitations_by_tenant` ON `invitations` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE TABLE `project_members` (
	`project_id` text NOT NULL,
	`user_id` text NOT NULL,
	`role` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`project_id`, `user_id`),
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`user_id`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `project_members_by_user` ON `project_members` (`user_id`);--> statement-breakpoint
ALTER TABLE `accounts` ADD `version` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
-- Sessions that were opened before sessions were recorded continue.
INSERT INTO `sessions` (`id`, `account_id`, `last_used_at`, `expires_at`, `created_at`)
  SELECT `family_id`, `account_id`, unixepoch() * 1000, max(`expires_at`), unixepoch() * 1000
  FROM `refresh_tokens` GROUP BY `family_id`, `account_id`;
