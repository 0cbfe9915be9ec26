ALTER TABLE `project_branches` ADD `lease_seconds` integer;--> statement-breakpoint
ALTER TABLE `project_branches` ADD `lease_ends_at` integer;--> statement-breakpoint
ALTER TABLE `project_branches` ADD `labels` text DEFAULT '{}' NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `leased_branch_limit` integer;