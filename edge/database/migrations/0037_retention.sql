CREATE TABLE `audit_exports` (
	`id` text PRIMARY KEY NOT NULL,
	`event_id` text NOT NULL,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `branches_live` ON `project_branches` (`project_id`,`is_default`,`created_at`) WHERE status <> 'deleted';--> statement-breakpoint
CREATE INDEX `branches_live_name` ON `project_branches` (`project_id`,`branch_name`) WHERE status <> 'deleted';--> statement-breakpoint
CREATE INDEX `branches_by_parent` ON `project_branches` (`parent_branch_id`);