ALTER TABLE `project_branches` ADD `data` text DEFAULT 'full' NOT NULL;--> statement-breakpoint
ALTER TABLE `project_branches` ADD `keep_tables` text DEFAULT '[]' NOT NULL;--> statement-breakpoint
ALTER TABLE `project_branches` ADD `masking_version` integer;--> statement-breakpoint
ALTER TABLE `project_branches` ADD `checked_at` integer;--> statement-breakpoint
ALTER TABLE `projects` ADD `masked_only` integer DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE `snapshots` ADD `data` text DEFAULT 'full' NOT NULL;--> statement-breakpoint
ALTER TABLE `snapshots` ADD `keep_tables` text DEFAULT '[]' NOT NULL;--> statement-breakpoint
ALTER TABLE `api_keys` ADD `permissions` text DEFAULT '[]' NOT NULL;--> statement-breakpoint
UPDATE `snapshots` SET `data` = 'masked' WHERE `masking_version` IS NOT NULL;
