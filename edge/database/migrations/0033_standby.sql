ALTER TABLE `hosts` ADD `standby_of` text;--> statement-breakpoint
ALTER TABLE `hosts` ADD `fenced` integer DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE `hosts` ADD `generation` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `hosts` ADD `yields_to` text;--> statement-breakpoint
ALTER TABLE `hosts` ADD `yields_since` integer;--> statement-breakpoint
ALTER TABLE `hosts` ADD `owes_notice` integer DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `failed_over_at` integer;--> statement-breakpoint
ALTER TABLE `projects` ADD `survived_until` integer;--> statement-breakpoint
CREATE TRIGGER `project_failed_over` AFTER UPDATE OF `failed_over_at` ON `projects` FOR EACH ROW
WHEN OLD.failed_over_at IS NOT NEW.failed_over_at
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'project.failed_over', NEW.id, NEW.tenant_id, '[]', json_object('survived_until', NEW.survived_until);
END;
