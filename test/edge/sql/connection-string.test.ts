import { expect, test } from 'vitest';
import { NOBODY, readConnectionString } from '../../../edge/sql/connection-string.ts';

const ID = '3f2b8c1e-6d4a-4b0f-9a57-1c2d3e4f5a6b';
const LOGIN = `u_${ID.replaceAll('-', '')}_rw`;

test('the URL of a login says branch, login, database, password and name of the application', () => {
  expect(
    readConnectionString(
      `postgresql://${LOGIN}:a%2Fb@db.example.com:6432/db_shop_prod?sslmode=require&application_name=shöp`,
    ),
  ).toEqual({
    branchId: ID,
    role: 'read_write',
    login: LOGIN,
    database: 'db_shop_prod',
    password: 'a/b',
    applicationName: 'sh?p',
  });
  expect(readConnectionString(`postgres://${LOGIN}@x/db_shop_prod`)).toMatchObject({ password: '' });
});

test.each(['postgres', `${LOGIN}x`, `u_${ID}_rw`, LOGIN.replace('_rw', '_query'), ''])(
  '%j is a login that does not exist',
  (login) => {
    expect(readConnectionString(`postgresql://${login}:p@x/db`)).toMatchObject({ branchId: NOBODY, login });
  },
);

test.each(['', 'nonsense', `https://${LOGIN}:p@x/db`, `postgresql://${LOGIN}:%E0%A4%A@x/db`])(
  '%j is no URL of a database',
  (text) => {
    expect(readConnectionString(text)).toBeNull();
  },
);
