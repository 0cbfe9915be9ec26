import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.Map;

/** Tries PostgreSQL's JDBC driver on the branch of DATABASE_URL (pooled) and DIRECT_URL, as clients.mjs does. */
class Clients {
  public static void main(String[] arguments) {
    Map<String, String> ports = Map.of("pooled", System.getenv("DATABASE_URL"), "direct", System.getenv("DIRECT_URL"));
    ports.forEach((port, url) -> {
      String result;
      try {
        tryOn(port, java.net.URI.create(url));
        result = "ok";
      } catch (Exception error) {
        result = error.getMessage();
      }
      System.out.printf("{\"client\": \"jdbc\", \"port\": \"%s\", \"all\": \"%s\"}%n", port, result);
    });
  }

  static void tryOn(String port, java.net.URI url) throws Exception {
    String[] login = url.getUserInfo().split(":");
    String verified = "jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath()
        + "?sslmode=verify-full&sslrootcert=" + System.getenv("PGSSLROOTCERT");
    String table = "t_jdbc_" + port;
    try (Connection connection = DriverManager.getConnection(verified, login[0], login[1])) {
      connection.createStatement().execute("create table " + table + " (id int primary key, name text)");
      connection.createStatement().execute("insert into " + table + " values (1, 'a')");
      // The driver prepares a statement on the server from its fifth use on.
      try (PreparedStatement statement = connection.prepareStatement("select * from " + table + " where id = ?")) {
        for (int n = 0; n < 8; n++) {
          statement.setInt(1, 1);
          ResultSet rows = statement.executeQuery();
          if (!rows.next()) throw new IllegalStateException("no row");
        }
      }
    }
  }
}
