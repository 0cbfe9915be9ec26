/** What a connection URL consists of. */
export interface Connection {
  url: string;
  user: string;
  password: string;
  host: string;
  port: string;
  database: string;
}

export function connectionOf(url: string): Connection {
  const { username, password, hostname, port, pathname } = new URL(url);
  return {
    url,
    user: decodeURIComponent(username),
    password: decodeURIComponent(password),
    host: hostname,
    port,
    database: decodeURIComponent(pathname.slice(1)),
  };
}

const HIDDEN = '••••••••';

/** The connection as it is shown while passwords are hidden. */
export const hidden = (connection: Connection): Connection => ({
  ...connection,
  url: connection.url.replace(`:${connection.password}@`, `:${HIDDEN}@`),
  password: HIDDEN,
});

export interface Urls {
  pooled: Connection;
  direct: Connection;
  pooledKey: string;
  directKey: string;
}

/** How to connect, by language or tool. Frameworks that migrate schemas get the direct URL for that. */
export const SNIPPETS: readonly {
  id: string;
  label: string;
  code: (urls: Urls) => string;
}[] = [
  { id: 'psql', label: 'psql', code: ({ direct }) => `psql "${direct.url}"` },
  {
    id: 'env',
    label: '.env',
    code: ({ pooled, direct }) => `DATABASE_URL="${pooled.url}"\nDIRECT_URL="${direct.url}"`,
  },
  {
    id: 'node-postgres',
    label: 'node-postgres',
    code: ({ pooled }) => `import pg from 'pg';

// DATABASE_URL="${pooled.url}"
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const { rows } = await pool.query('select now()');`,
  },
  {
    id: 'prisma',
    label: 'Prisma',
    code: ({ pooled, direct }) => `// .env
DATABASE_URL="${pooled.url}"
DIRECT_URL="${direct.url}"

// schema.prisma
datasource db {
  provider  = "postgresql"
  url       = env("DATABASE_URL")
  directUrl = env("DIRECT_URL")
}`,
  },
  {
    id: 'drizzle',
    label: 'Drizzle',
    code: ({ pooled, direct }) =>
      [
        '// .env',
        `DATABASE_URL="${pooled.url}"`,
        `DIRECT_URL="${direct.url}"`,
        '',
        '// drizzle.config.ts: migrations run on the direct connection',
        'export default defineConfig({',
        "  dialect: 'postgresql',",
        '  dbCredentials: { url: process.env.DIRECT_URL },',
        '});',
        '',
        '// db.ts',
        'export const db = drizzle(process.env.DATABASE_URL);',
      ].join('\n'),
  },
  {
    id: 'sqlalchemy',
    label: 'SQLAlchemy',
    code: ({ pooled }) => `from sqlalchemy import create_engine, text

engine = create_engine("${pooled.url.replace('postgresql://', 'postgresql+psycopg://')}")
with engine.connect() as connection:
    print(connection.execute(text("select now()")).scalar())`,
  },
  {
    id: 'jdbc',
    label: 'JDBC',
    code: ({
      pooled,
    }) => `jdbc:postgresql://${pooled.host}:${pooled.port}/${pooled.database}?sslmode=require&prepareThreshold=0
user=${pooled.user}
password=${pooled.password}`,
  },
  {
    id: 'rails',
    label: 'Rails',
    code: ({ pooled }) => `# config/database.yml
production:
  adapter: postgresql
  url: <%= ENV["DATABASE_URL"] %>
  prepared_statements: false

# DATABASE_URL="${pooled.url}"`,
  },
  {
    id: 'go',
    label: 'Go',
    code: ({ pooled }) => `// github.com/jackc/pgx/v5
// DATABASE_URL="${pooled.url}"
pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))`,
  },
];
