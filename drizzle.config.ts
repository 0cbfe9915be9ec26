import { defineConfig } from 'drizzle-kit';

export default defineConfig({
  dialect: 'sqlite',
  schema: './edge/database/schema.ts',
  out: './edge/database/migrations',
});
