import { AUTHORITY_FILE, verifiedUrl } from '../../../shared/branch/verified-url.ts';

/** What a connection URL consists of. */
export interface Connection {
  /** It verifies the server. */
  url: string;
  hasAuthority: boolean;
  user: string;
  password: string;
  host: string;
  port: string;
  database: string;
}

/** @param hasAuthority the host has an authority of its own, which the client gets as a file */
export function connectionOf(given: string, hasAuthority: boolean): Connection {
  const { username, password, hostname, port, pathname } = new URL(given);
  return {
    url: verifiedUrl(given, hasAuthority ? AUTHORITY_FILE : null),
    hasAuthority,
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

/** libpq has no authorities of its own: from version 16 it can use those of the system. */
const forLibpq = ({ url, hasAuthority }: Connection) => (hasAuthority ? url : `${url}&sslrootcert=system`);

/** Neon's client reads no files, and gets the authority from its runtime. */
const forNeon = ({ url }: Connection) => url.replace(/&sslrootcert=[^&]*/, '');

/** Prisma's migrations have names of their own for these parameters; its client is that of node-postgres. */
function forPrisma({ url, hasAuthority }: Connection): string {
  const parameters = hasAuthority ? `sslcert=${AUTHORITY_FILE}&` : '';
  return url.replace(/\?.*$/, `?sslmode=require&${parameters}sslaccept=strict`);
}

const forJdbc = ({ hasAuthority }: Connection) =>
  hasAuthority ? `sslrootcert=${AUTHORITY_FILE}` : 'sslfactory=org.postgresql.ssl.DefaultJavaSSLFactory';

export interface Urls {
  pooled: Connection;
  direct: Connection;
  /** Address of the gateway. */
  gateway: string;
  pooledKey: string;
  directKey: string;
}

/** How to connect, by language or tool. Frameworks that migrate schemas get the direct URL for that. */
export const SNIPPETS: readonly {
  id: string;
  label: string;
  code: (urls: Urls) => string;
}[] = [
  { id: 'psql', label: 'psql', code: ({ direct }) => `psql "${forLibpq(direct)}"` },
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
    code: ({ pooled, direct }) =>
      [
        '// .env',
        `DATABASE_URL="${pooled.url}"`,
        `DIRECT_URL="${forPrisma(direct)}"`,
        '',
        '// prisma.config.ts (Prisma 7): migrations run on the direct connection',
        'export default defineConfig({',
        "  schema: 'prisma/schema.prisma',",
        "  datasource: { url: env('DIRECT_URL') },",
        '});',
        '',
        '// db.ts',
        "import { PrismaPg } from '@prisma/adapter-pg';",
        'const adapter = new PrismaPg({ connectionString: process.env.DATABASE_URL });',
        'export const prisma = new PrismaClient({ adapter });',
      ].join('\n'),
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
    id: 'serverless',
    label: 'Serverless (HTTP)',
    code: ({ pooled, gateway }) =>
      [
        '// Functions without a fixed address need a rule for SQL over HTTP, which opens no port.',
        "import { neon, neonConfig } from '@neondatabase/serverless';",
        '',
        `// DATABASE_URL="${forNeon(pooled)}"`,
        `neonConfig.fetchEndpoint = '${gateway}/sql';`,
        'const sql = neon(process.env.DATABASE_URL);',
        'const rows = await sql`select now()`;',
        '',
        '// Drizzle',
        "import { drizzle } from 'drizzle-orm/neon-http';",
        'export const db = drizzle({ client: sql });',
        '',
        '// Without a library',
        `const response = await fetch('${gateway}/sql', {`,
        "  method: 'POST',",
        "  headers: { 'Neon-Connection-String': process.env.DATABASE_URL },",
        "  body: JSON.stringify({ query: 'select $1::int as n', params: [7] }),",
        '});',
      ].join('\n'),
  },
  {
    id: 'web-socket',
    label: 'Serverless (WebSocket)',
    code: ({ pooled }) =>
      [
        '// Interactive transactions of functions. The rules are those of SQL over HTTP.',
        "import { neonConfig, Pool } from '@neondatabase/serverless';",
        '',
        `// DATABASE_URL="${forNeon(pooled)}"`,
        `neonConfig.wsProxy = (host, port) => \`\${host}/v2?address=\${host}:\${port}\`;`,
        'const pool = new Pool({ connectionString: process.env.DATABASE_URL });',
        '',
        '// Drizzle',
        "import { drizzle } from 'drizzle-orm/neon-serverless';",
        'export const db = drizzle({ client: pool });',
        '',
        '// Prisma',
        "import { PrismaNeon } from '@prisma/adapter-neon';",
        'const adapter = new PrismaNeon({ connectionString: process.env.DATABASE_URL });',
        'export const prisma = new PrismaClient({ adapter });',
      ].join('\n'),
  },
  {
    id: 'sqlalchemy',
    label: 'SQLAlchemy',
    code: ({ pooled }) => `from sqlalchemy import create_engine, text

engine = create_engine("${forLibpq(pooled).replace('postgresql://', 'postgresql+psycopg://')}")
with engine.connect() as connection:
    print(connection.execute(text("select now()")).scalar())`,
  },
  {
    id: 'jdbc',
    label: 'JDBC',
    code: ({
      pooled,
    }) => `jdbc:postgresql://${pooled.host}:${pooled.port}/${pooled.database}?sslmode=verify-full&${forJdbc(pooled)}&prepareThreshold=0
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

# DATABASE_URL="${forLibpq(pooled)}"`,
  },
  {
    id: 'go',
    label: 'Go',
    // Named statements, its default, do not work through PgBouncer.
    code: ({ pooled }) => `// github.com/jackc/pgx/v5
// DATABASE_URL="${pooled.url}&default_query_exec_mode=cache_describe"
pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))`,
  },
];
