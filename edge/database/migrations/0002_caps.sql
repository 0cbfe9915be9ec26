ALTER TABLE `hosts` ADD `draining` integer DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `storage_quota_cap_gib` real DEFAULT 5 NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `storage_quota_gib` real DEFAULT 0.25 NOT NULL;