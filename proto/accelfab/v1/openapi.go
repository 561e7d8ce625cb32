// Package accelfabv1 is the contract of accelfab: messages, gRPC clients and
// servers, HTTP routes and the OpenAPI document, all generated from the .proto
// files beside it. Each of these tells in its comments what may be asked, in
// which units and ranges, and how a refusal looks.
package accelfabv1

import _ "embed"

// OpenAPI is the OpenAPI 3.1 document of the HTTP API, in JSON.
//
//go:embed openapi.json
var OpenAPI []byte
