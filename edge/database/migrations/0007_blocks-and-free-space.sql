ALTER TABLE `hosts` ADD `free_bytes` integer;--> statement-breakpoint
ALTER TABLE `project_branches` ADD `blocks` text DEFAULT '[]' NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `blocks_observed_at` integer;