CREATE TABLE `follows` (
	`project_id` text PRIMARY KEY NOT NULL,
	`branch_id` text NOT NULL,
	`tenant_id` text NOT NULL,
	`job_id` text NOT NULL,
	`state` text NOT NULL,
	`source` text NOT NULL,
	`publication` text,
	`tables` text DEFAULT '[]' NOT NULL,
	`problem` text,
	`observed_at` integer,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TRIGGER `follow_inserted` AFTER INSERT ON `follows` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'follow.changed', NEW.project_id, NEW.tenant_id, '[]', json_object('branch_id', NEW.branch_id, 'state', NEW.state, 'source', json(NEW.source), 'problem', json(NEW.problem));
END;
--> statement-breakpoint
CREATE TRIGGER `follow_changed` AFTER UPDATE OF `state`, `problem` ON `follows` FOR EACH ROW
WHEN OLD.state <> NEW.state OR OLD.problem IS NOT NEW.problem
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'follow.changed', NEW.project_id, NEW.tenant_id, '[]', json_object('branch_id', NEW.branch_id, 'state', NEW.state, 'source', json(NEW.source), 'problem', json(NEW.problem));
END;
--> statement-breakpoint
CREATE TRIGGER `follow_deleted` AFTER DELETE ON `follows` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'follow.changed', OLD.project_id, OLD.tenant_id, '[]', json_object('branch_id', OLD.branch_id, 'state', 'deleted', 'source', json(OLD.source), 'problem', json(NULL));
END;
