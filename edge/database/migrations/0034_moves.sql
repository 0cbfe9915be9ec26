CREATE TABLE `drains` (
	`host_id` text PRIMARY KEY NOT NULL,
	`branches` text NOT NULL,
	`drops_snapshots` integer NOT NULL,
	`failed` text NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`host_id`) REFERENCES `hosts`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `moves` (
	`project_id` text PRIMARY KEY NOT NULL,
	`job_id` text NOT NULL,
	`from_host_id` text NOT NULL,
	`to_host_id` text NOT NULL,
	`phase` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_password` text,
	`admitted_at` text,
	`follows` integer,
	`branches` text NOT NULL,
	`away_since` integer,
	`fenced_at` integer,
	`kept_until` integer,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	FOREIGN KEY (`project_id`) REFERENCES `projects`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `moves_to` ON `moves` (`to_host_id`);--> statement-breakpoint
CREATE INDEX `moves_from` ON `moves` (`from_host_id`);--> statement-breakpoint
CREATE INDEX `jobs_of_moves` ON `jobs` (`host_id`,`updated_at`) WHERE kind = 'project.move';