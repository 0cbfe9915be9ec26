import { BRANCH_ROLES, type BranchRole, branchOfLogin, loginName } from '../../shared/branch/login.ts';

/** Parts of the URL by which a client of SQL over HTTP names its branch and login. */
export interface ConnectionString {
  /** `NOBODY` for a login that does not have the form of one. */
  branchId: string;
  role: BranchRole;
  /** The text of the client. */
  login: string;
  database: string;
  password: string;
  applicationName: string;
}

/** No branch has this ID. */
export const NOBODY = '00000000-0000-4000-8000-000000000000';

const LOGIN = /^u_[0-9a-f]{32}_/;
/** PostgreSQL's NAMEDATALEN without its end. */
const NAME_LENGTH = 63;

/** @returns null for a text that is not the URL of a database */
export function readConnectionString(text: string): ConnectionString | null {
  try {
    const url = new URL(text);
    if (!['postgres:', 'postgresql:'].includes(url.protocol)) return null;
    const login = decodeURIComponent(url.username);
    const branchId = LOGIN.test(login) ? branchOfLogin(login) : NOBODY;
    const role = BRANCH_ROLES.find((one) => loginName(branchId, one) === login);
    return {
      // A login of another form gets the same work and answer as one that does not exist.
      branchId: role ? branchId : NOBODY,
      role: role ?? 'read_only',
      login: login.slice(0, NAME_LENGTH),
      database: decodeURIComponent(url.pathname.slice(1)),
      password: decodeURIComponent(url.password),
      applicationName: printable(url.searchParams.get('application_name') ?? ''),
    };
  } catch {
    return null;
  }
}

/** PostgreSQL shows every other character as `?`. */
const printable = (name: string) => name.replace(/[^\x20-\x7e]/g, '?').slice(0, NAME_LENGTH);
