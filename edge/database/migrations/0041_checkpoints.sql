ALTER TABLE `project_branches` ADD `undone_to` integer;--> statement-breakpoint
ALTER TABLE `snapshots` ADD `number` integer;