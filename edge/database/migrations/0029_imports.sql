CREATE TABLE `import_sources` (
	`job_id` text PRIMARY KEY NOT NULL,
	`project_id` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_url` text NOT NULL,
	`copied` text,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`job_id`) REFERENCES `jobs`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
ALTER TABLE `project_branches` ADD `hold` text;--> statement-breakpoint
CREATE TRIGGER `branch_held` AFTER UPDATE OF `hold` ON `project_branches` FOR EACH ROW
WHEN OLD.hold IS NOT NEW.hold
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'branch.changed', NEW.project_id, NEW.tenant_id, iif(NEW.is_default, '[]', json_array(NEW.branch_name)), json_object('branch_id', NEW.id, 'branch_name', NEW.branch_name, 'status', NEW.status, 'expires_at', NEW.expires_at, 'labels', json(NEW.labels), 'blocks', json(NEW.blocks), 'hold', NEW.hold);
END;
