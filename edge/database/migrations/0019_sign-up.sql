CREATE TABLE `owner_invitations` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`email` text NOT NULL,
	`expires_at` integer NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `owner_invitations_tenant_id_unique` ON `owner_invitations` (`tenant_id`);--> statement-breakpoint
ALTER TABLE `organizations` ADD `name` text;