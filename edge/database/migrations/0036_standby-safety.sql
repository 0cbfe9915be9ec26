ALTER TABLE `hosts` ADD `applied_generation` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `projects` ADD `owes_notice` integer DEFAULT false NOT NULL;