CREATE TABLE `changes` (
	`id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`tenant_id` text NOT NULL,
	`state` text NOT NULL,
	`former_state` text,
	`stale` integer DEFAULT false NOT NULL,
	`source_branch_id` text,
	`source_name` text,
	`sql` text,
	`plan` text NOT NULL,
	`digest` text NOT NULL,
	`rehearsal` text,
	`approvals` text DEFAULT '[]' NOT NULL,
	`options` text,
	`due_at` integer,
	`applier` text,
	`done` integer DEFAULT 0 NOT NULL,
	`schema_done` text,
	`application` text,
	`snapshot_id` text,
	`paused_ms` integer,
	`job_id` text,
	`created_by` text NOT NULL,
	`author_sees_data` integer NOT NULL,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`created_by`) REFERENCES `users`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `changes_by_project` ON `changes` (`project_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `changes_due` ON `changes` (`project_id`,`due_at`);--> statement-breakpoint
ALTER TABLE `projects` ADD `change_approvals` integer DEFAULT 0 NOT NULL;
--> statement-breakpoint
CREATE TRIGGER `change_inserted` AFTER INSERT ON `changes` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'change.changed', NEW.project_id, NEW.tenant_id, '[]', json_object('change_id', NEW.id, 'state', NEW.state, 'steps_applied', NEW.done, 'job_id', NEW.job_id);
END;
--> statement-breakpoint
CREATE TRIGGER `change_changed` AFTER UPDATE OF `state`, `done` ON `changes` FOR EACH ROW
WHEN OLD.state <> NEW.state OR OLD.done <> NEW.done
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'change.changed', NEW.project_id, NEW.tenant_id, '[]', json_object('change_id', NEW.id, 'state', NEW.state, 'steps_applied', NEW.done, 'job_id', NEW.job_id);
END;
