ALTER TABLE `project_branches` ADD `connection_attempts` integer DEFAULT 50 NOT NULL;--> statement-breakpoint
ALTER TABLE `project_branches` ADD `has_own_attempts` integer DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `connection_attempts` integer DEFAULT 50 NOT NULL;