CREATE TABLE `snapshots` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`branch_id` text NOT NULL,
	`branch_name` text NOT NULL,
	`name` text,
	`kind` text NOT NULL,
	`status` text NOT NULL,
	`independent` integer DEFAULT false NOT NULL,
	`size_bytes` integer DEFAULT 0 NOT NULL,
	`own_bytes` integer,
	`shared_bytes` integer,
	`rules` text DEFAULT '[]' NOT NULL,
	`taken_at` integer NOT NULL,
	`expires_at` integer,
	`tenant_id` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `snapshots_by_project` ON `snapshots` (`project_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `snapshots_by_branch` ON `snapshots` (`branch_id`);--> statement-breakpoint
ALTER TABLE `project_branches` ADD `own_bytes` integer;--> statement-breakpoint
ALTER TABLE `project_branches` ADD `shared_bytes` integer;--> statement-breakpoint
ALTER TABLE `projects` ADD `snapshot_schedule` text;--> statement-breakpoint
ALTER TABLE `projects` ADD `snapshot_due_at` integer;