// Command protodeps writes the .proto files that the contract imports from
// Google into a directory, out of the descriptors that this module links. So
// the imports have exactly the versions of go.mod, are checked by go.sum, and
// need no network.
//
// Usage: protodeps DIR
package main

import (
	"fmt"
	"os"

	"github.com/jhump/protoreflect/v2/protoprint"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// files are the imports of the contract and what they import themselves. The
// google/protobuf ones are part of every compiler.
var files = []protoreflect.FileDescriptor{
	annotations.File_google_api_annotations_proto,
	annotations.File_google_api_http_proto,
	annotations.File_google_api_field_behavior_proto,
	annotations.File_google_api_resource_proto,
	status.File_google_rpc_status_proto,
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: protodeps DIR")
		os.Exit(2)
	}
	var printer protoprint.Printer
	if err := printer.PrintProtosToFileSystem(files, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "protodeps:", err)
		os.Exit(1)
	}
}
