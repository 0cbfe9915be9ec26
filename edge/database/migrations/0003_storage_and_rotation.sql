ALTER TABLE `branch_credentials` ADD `revision` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `storage_used_bytes` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `storage_state` text DEFAULT 'normal' NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `storage_measured_at` integer;